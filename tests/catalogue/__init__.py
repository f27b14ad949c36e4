"""Catalogues of bad and unusual files, with the expected result of each reader."""
