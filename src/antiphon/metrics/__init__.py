"""Names, units and definitions of what is measured. One metric, one name, one unit, everywhere."""
