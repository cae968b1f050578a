"""``SeroWebShopBrowser-v0``: the shop's web site, driven by a real browser. See docs/site.md."""
