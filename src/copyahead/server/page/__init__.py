"""The page at `/`: a chat in the browser that shows where each token was copied from.

files    what the browser loads, as it was packaged, and the headers that it comes with
status   what a key may know of its own requests; the page asks once a second
static/  the page itself: one document, one style sheet, and modules of plain JavaScript

The page is a client like any other: what it asks for goes through the routes that all clients use.
"""
