"""What is kept: records in SQL (:mod:`.database`), arrays in files (:mod:`.blobs`)."""
