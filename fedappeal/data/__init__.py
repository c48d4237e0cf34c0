"""What people bring: one reader of tables (CSV, JSON lines, Parquet, saved datasets, data frames), one of images."""
