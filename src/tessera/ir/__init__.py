"""The intermediate representations: dialects of every level, and the layouts that they share."""
