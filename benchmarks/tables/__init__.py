"""The paper's tables with our figures, the paper's and those of other packages, as commands; RESULTS.md shows them."""
