"""The original WebShop as a reference: running a checkout of it, and replaying its transcripts."""
