"""The graph that points live on: neighbours, coordinates, weights, the Laplacian and its smallest eigenvectors."""
