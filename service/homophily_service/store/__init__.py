"""What is kept: arrays (:mod:`.blobs`) and the records about them."""
