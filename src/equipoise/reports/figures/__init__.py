"""The report's figures, one file for each kind; `every` lists them."""
