"""The papers' tables and figures as code: each prints ours beside theirs."""
