"""Trains a small convolutional net on JPEG records from S3; it may be killed at any time, and goes on where it was.

    python -m examples.train_images

starts a SeaweedFS, writes records to it, trains on them, is killed in the middle, and resumes. With data of your own:

    python -m examples.train_images.train 's3://bucket/digits-*' --checkpoint run.pt [--device cuda]

Needs torch, and what `pip install 'streamrec[dev,s3]'` installs: Pillow, and scikit-learn for its digits.
"""
