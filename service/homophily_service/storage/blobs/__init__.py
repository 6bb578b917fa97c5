"""Arrays with their manifests, in a folder or a bucket."""
