"""What every command needs to talk to people and programs.

output      JSON, tables and remarks
stages      what a command says while it gets ready
streams     standard streams that are closed, full, or take ASCII only
sentences   what errors say on the command line
"""
