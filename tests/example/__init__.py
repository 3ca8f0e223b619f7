"""Tests of the example room."""
