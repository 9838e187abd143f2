"""Generated from the .proto files beside it by `make protocols`; checked in, and checked to be current by a test."""
