"""Scripts for those who work on rewarm; nothing at run time imports them."""
