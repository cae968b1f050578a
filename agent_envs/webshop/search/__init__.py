"""Full-text search over products: Lucene's analysis and BM25, memory-mapped."""

from agent_envs.webshop.search.analyzer import analyze
from agent_envs.webshop.search.documents import document_text
from agent_envs.webshop.search.index import SearchIndex

__all__ = ["SearchIndex", "analyze", "document_text"]
