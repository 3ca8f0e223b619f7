"""Several epochs from a bucket through a cache on a local disk, beside MosaicML Streaming and
WebDataset: `python -m benchmarks.disk_cache`.

`data` writes the images in each library's format, `sides` reads them, `reader` is the process that
does so, `ranks` starts such processes and sees how they end, `runs` makes a row of their epochs,
`overhead` compares streamrec's cache with no cache and with local files, `page` has the tables.
"""
