"""The demo: writes images as TFRecord shards to a real S3 server, and streams them back into a
training loop.

Run `make demo`. To see how to use streamrec, read the files in this order:

    data.py     the images: scikit-learn's handwritten digits, drawn differently for every record
    records.py  the content of a record: encode a batch of images, parse a batch of records
    write.py    batches into shards on S3, through `ShardWriter`
    train.py    shards into a training loop, through `TFRecordDataset`
    model.py    the classifier, in NumPy
    show.py     progress, and the table at the end
    run.py      all of it in order, and the clean-up
"""
