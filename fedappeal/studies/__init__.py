"""What all experiments share: rows and measures, the runs, tables, pictures and pages."""
