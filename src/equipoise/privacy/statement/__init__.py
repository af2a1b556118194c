"""What a run guarantees, from its result alone: as a document for programs, in Markdown, as a page
to print, and as an entry of a public registry."""

from equipoise.privacy.statement.document import Guarantee, guarantee_of
from equipoise.privacy.statement.markdown import statement
from equipoise.privacy.statement.page import page_of
from equipoise.privacy.statement.registry import registry_entry

__all__ = ["Guarantee", "guarantee_of", "page_of", "registry_entry", "statement"]
