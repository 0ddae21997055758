"""Drawing of reports: parts of SVG pictures, and the style of HTML pages."""
