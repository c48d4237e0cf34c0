"""MaxFL (Cho et al., TMLR 2024): its tables and figures."""
