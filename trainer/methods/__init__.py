"""Auxiliary objectives in a run: glue between recorded turns and `trainer.auxiliary`."""
