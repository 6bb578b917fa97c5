"""From a table with named columns to points: the columns, and the recipe that is kept with a model."""
