"""Files that lie elsewhere: in buckets, on the web or in folders of the server, read in ranges and never changed."""
