"""How each tile function is compiled to TIR-H. One file per family; the registry imports every file here."""
