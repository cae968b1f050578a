"""The `sero` command: `main.py` dispatches, every other module is one command."""
