"""Pictures of models and maps: from data to the bytes of PNG files and of pages that need nothing but themselves.

Nothing here reads a store, asks a service or writes a file; matplotlib is needed when a picture is drawn, not before.
"""

from homophily_service.plots.gallery import embedding_pictures, model_pictures

__all__ = ["embedding_pictures", "model_pictures"]
