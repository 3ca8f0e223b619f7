"""HTML for notebooks: self-contained pieces, escaped, readable on light and on dark ground. Knows nothing of streamrec.

Rules:
- What comes from data is escaped; the only thing that is shown as it is are JPEG and PNG images, as data URIs.
- Everything is bounded: rows, characters, images and their bytes.
- Passwords in URLs are masked, as in `repr`.
"""

from streamrec.html.elements import bar, boxed, element, fragment, table, text
from streamrec.html.values import ROWS, Budget, payloads, rows_of, shown

__all__ = ["ROWS", "Budget", "bar", "boxed", "element", "fragment", "payloads", "rows_of", "shown", "table", "text"]
