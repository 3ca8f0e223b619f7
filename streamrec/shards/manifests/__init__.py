"""Manifests: what a data set consists of; written, counted later, and verified."""
