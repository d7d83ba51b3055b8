// Opened from a folder, pages may not read each other: results of a search are then shown without an excerpt.
if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
