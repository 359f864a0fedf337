
Ø
c000000000000002"¿

c000000000000001etcd-1€æş‰¡

server.crt-----BEGIN CERTIFICATE-----
MIIBuDCCAV6gAwIBAgIQYPDoDSXE7xFmNa8lufod3DAKBggqhkjOPQQDAjAPMQ0w
CwYDVQQDDARldGNkMB4XDTI1MTIzMTIzNTUwMFoXDTI3MDEwMTAwMDAwMFowETEP
MA0GA1UEAwwGZXRjZC0xMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEYv1hAETe
eUd801Pz/EHrw9i9SKPMVjldHp4t3DjNg852iDrvnDwFVuvi+68T1aMlRiuphsPv
7l4WK9ppEICJNKOBmTCBljAfBgNVHSMEGDAWgBQGRqXb41/2ePEdqoNT9smE4ktk
1jAXBgNVHREEEDAOggZldGNkLTGHBAoAAAIwDgYDVR0PAQH/BAQDAgeAMB0GA1Ud
JQQWMBQGCCsGAQUFBwMBBggrBgEFBQcDAjAdBgNVHQ4EFgQUqCGgagUAcpiBYB2a
8So8FSHHQRYwDAYDVR0TAQH/BAIwADAKBggqhkjOPQQDAgNIADBFAiEA979gTG/9
MIcHoQkb/o6DavObUHDyHU9VtVfQ3vH4yjMCIEBi1pbsRDaTk37jRpSKU0d1uUu0
YaNRZK1C9N78j/Ld
-----END CERTIFICATE-----
‚

server.keyñ-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgbcP+QLrobOTWqphi
lO8XIZZ1ja2fka4TzMLJycFxEnuhRANCAARi/WEARN55R3zTU/P8QevD2L1Io8xW
OV0eni3cOM2DznaIOu+cPAVW6+L7rxPVoyVGK6mGw+/uXhYr2mkQgIk0
-----END PRIVATE KEY-----
Ÿ
peer.crt-----BEGIN CERTIFICATE-----
MIIBuDCCAV6gAwIBAgIQdYJPF8zc0HtUzMDbPYyx2zAKBggqhkjOPQQDAjAPMQ0w
CwYDVQQDDARldGNkMB4XDTI1MTIzMTIzNTUwMFoXDTI3MDEwMTAwMDAwMFowETEP
MA0GA1UEAwwGZXRjZC0xMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEzsDshfNR
0wKyFM4dMjgnfibgZBwWSc4SRx61P/o1ySfFEyLOTeX9T3nBJDiPR9Q0DtMNnoCK
DKd1KfpJiUhyNKOBmTCBljAfBgNVHSMEGDAWgBQGRqXb41/2ePEdqoNT9smE4ktk
1jAXBgNVHREEEDAOggZldGNkLTGHBAoAAAIwDgYDVR0PAQH/BAQDAgeAMB0GA1Ud
JQQWMBQGCCsGAQUFBwMBBggrBgEFBQcDAjAdBgNVHQ4EFgQUt6LSd3zrc4fz5XxE
v3mZVRXqMPwwDAYDVR0TAQH/BAIwADAKBggqhkjOPQQDAgNIADBFAiBfdK3r59ae
yIW/vA0fSq9U7KnMGQtJ5gHRSgkug76gcgIhALgT4iSfO3JaXN+GA12wncuRH9MJ
ml+IAIFDGTsFliaA
-----END CERTIFICATE-----
€
peer.keyñ-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgU5MPKTkjE6Vlwcex
KyxPmadnoKyXAQO/lyXvBXKbB5ShRANCAATOwOyF81HTArIUzh0yOCd+JuBkHBZJ
zhJHHrU/+jXJJ8UTIs5N5f1PecEkOI9H1DQO0w2egIoMp3Up+kmJSHI0
-----END PRIVATE KEY-----
§
ca.crtš-----BEGIN CERTIFICATE-----
MIIBYTCCAQegAwIBAgIQXMRWaWWJ7w/xNUfPWGGE7zAKBggqhkjOPQQDAjAPMQ0w
CwYDVQQDDARldGNkMB4XDTI1MTIzMTIzNTUwMFoXDTM1MTIzMDAwMDAwMFowDzEN
MAsGA1UEAwwEZXRjZDBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABFLMtIm41Ip1
DSiRwYP9M1CCYlJ210q+m9YQh0i4fTWIM8vetaZWW3eXJXRwpU7y3jrqQoE9up7z
aMQYlHXvWB+jRTBDMA4GA1UdDwEB/wQEAwIBhjAdBgNVHQ4EFgQUBkal2+Nf9njx
HaqDU/bJhOJLZNYwEgYDVR0TAQH/BAgwBgEB/wIBADAKBggqhkjOPQQDAgNIADBF
AiB3C/1kg+1I1+gEQXZGrE/dkeUnvwRmlBt8kvy0UoKPfwIhAJJOrsosG1Bwp1le
zr3lAXMvA0G4HjAW1HfDEm5dxfs5
-----END CERTIFICATE-----
"data*ú
etcdregistry.k8s.io/etcd:3.7.0-0etcd--name=etcd-1--data-dir=/var/lib/etcd+--listen-client-urls=https://10.0.0.2:20000.--advertise-client-urls=https://10.0.0.2:20000)--listen-peer-urls=https://10.0.0.2:200014--initial-advertise-peer-urls=https://10.0.0.2:20001k--initial-cluster=etcd-0=https://10.0.0.1:20001,etcd-1=https://10.0.0.2:20001,etcd-2=https://10.0.0.3:20001(--initial-cluster-token=c000000000000001--initial-cluster-state=new#--cert-file=/etc/keelway/server.crt"--key-file=/etc/keelway/server.key%--trusted-ca-file=/etc/keelway/ca.crt--client-cert-auth=true&--peer-cert-file=/etc/keelway/peer.crt%--peer-key-file=/etc/keelway/peer.key*--peer-trusted-ca-file=/etc/keelway/ca.crt--peer-client-cert-auth=true--tls-min-version=TLS1.2>--feature-gates=InitialCorruptCheck=true,CompactHashCheck=true --quota-backend-bytes=4294967296--auto-compaction-mode=periodic--auto-compaction-retention=30m*--bootstrap-defrag-threshold-megabytes=200#--watch-progress-notify-interval=5s"
files/etc/keelway"
data/var/lib/etcd*d€€€€0:F
>
10.0.0.2:20000/livezetcd-1"ca.crt*
peer.crtpeer.key
 (2registry.k8s.io/pause:3.10.2@H@f1a77c0f4738e9eaf78851eadf0079a690fd56c068c4afbe8182979023c24fd0