"""The cache's lower tiers: whole pages below the device, in the host's memory and in files.

page       what goes along with a page wherever it is
index      which pages a tier holds, what goes first, whose they are
host       pages in slots of the host's memory
header     what a page's file says of itself
page_file  the format of a page on disk
page_files the directory of them: written, read, removed by threads
disk       pages in files: bookkeeping

A tier knows a page by its chain hash, which begins at the root key of a namespace: what cannot be found on the device by
somebody else's tokens cannot be found here either. Tiers hold whole pages only.
"""
