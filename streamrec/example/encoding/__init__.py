"""Encoding: `encode.py` writes records from mappings and from columns."""
