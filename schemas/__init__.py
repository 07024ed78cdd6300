"""What goes over the wire, one file a resource. A leaf: it imports Marshmallow only."""
