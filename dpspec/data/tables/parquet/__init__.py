"""What a Parquet file would take once it is read, told by the file itself before pyarrow makes anything of it."""
