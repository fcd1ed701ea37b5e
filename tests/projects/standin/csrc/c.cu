//! seconds=0.2 mib=20
