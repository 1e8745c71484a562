"""The page of results: the verdict on the claims, and all experiments for which there are results.

- `document`: assembles the page and writes it with its figures.
- `verdict`: the claims, their verdicts and the evidence.
- `tables`: tables over all tasks.
- `experiments`: one section per experiment.
- `markdown`: tables, paragraphs and numbers as Markdown.
"""

from rpsp.experiments.results_page.document import Document, document, write

__all__ = [
    "Document",
    "document",
    "write",
]
