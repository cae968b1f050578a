"""The shop as a web site, for people and for agents that drive a browser. See docs/site.md."""
