"""Trains a small convolutional network on JPEG records from S3. You may kill it at any time; it
resumes where it was.

    python -m examples.train_images

starts a SeaweedFS server, writes records to it, trains on them, kills the training midway, and
resumes it. With your own data:

    python -m examples.train_images.train 's3://bucket/digits-*' --checkpoint run.pt [--device cuda]

Needs torch and `pip install '.[dev,s3]'` in a checkout of streamrec, which installs Pillow, and
scikit-learn for its digits.
"""
