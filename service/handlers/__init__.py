"""Validated input -> one store call -> response; one module per resource."""
