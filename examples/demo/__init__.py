"""The demo: images written as TFRecord shards to a real S3 server, and streamed back into a training loop.

Type `make demo`. To see how streamrec is used, read the files in this order:

    data.py     the images: scikit-learn's handwritten digits, drawn anew for every record
    records.py  what a record holds: encode a batch of images, parse a batch of records
    write.py    batches into shards on S3, through `ShardWriter`
    train.py    shards into a training loop, through `TFRecordDataset`
    model.py    the classifier, in NumPy
    show.py     progress and the table at the end
    run.py      all of it in order, and cleaning up
"""
