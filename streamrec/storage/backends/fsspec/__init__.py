"""Any other filesystem of fsspec: async ones, and sync ones in threads."""
