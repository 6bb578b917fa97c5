"""The studio: a page on which a person labels and links points, and watches the map follow."""
