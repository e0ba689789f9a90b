"""Functions of the language that are written in it, one file for each family; `frontend/ops` calls them."""
