"""Sphinx settings."""

from importlib.metadata import version as installed_version

project = "Partita"
author = "The Partita developers"
version = release = installed_version("partita")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_google_docstring = True
html_theme = "furo"
html_title = "Partita"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["copy.js"]
