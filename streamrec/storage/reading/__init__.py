"""Reading objects: one resumed stream (`stream.py`), or several ranges at a time behind it (`parallel_stream.py`)."""
