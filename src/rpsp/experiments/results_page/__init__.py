"""Part of the split of a larger module."""

from rpsp.experiments.results_page.document import Document, document, write

__all__ = [
    "Document",
    "document",
    "write",
]
