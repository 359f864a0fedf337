
¬÷
c000000000000002"ó
(
c000000000000001cluster-controller-0„æþ‰¾
cluster-controller.json {
  "kubeconfig": "/etc/keelway/kubeconfig.json",
  "version": "1.37.0",
  "vpnCIDRs": [
    "100.80.0.0/16"
  ],
  "podCIDRs": [
    "10.244.0.0/16"
  ],
  "serviceCIDRs": [
    "10.96.0.0/16"
  ],
  "dnsDomain": "cluster.local",
  "endpoints": [
    {
      "address": "203.0.113.1:20000",
      "gateway": {
        "publicKey": "t6YnQ6KvKYTAu4JAJ1bU/jeugc1M99TRBmrIpltyv1Q=",
        "addresses": [
          "100.80.0.2"
        ]
      }
    },
    {
      "address": "203.0.113.2:20000",
      "gateway": {
        "publicKey": "71a+3qVMThXUcIHSNlBuHsqdQmBjRBtEfVe9Qf/+/E0=",
        "addresses": [
          "100.80.0.3"
        ]
      }
    }
  ],
  "authorities": "/etc/keelway/ca.crt",
  "workerTTL": "168h",
  "addons": {
    "coreDNS": {
      "enabled": true
    },
    "kubeProxy": {
      "enabled": true
    },
    "metricsServer": {
      "enabled": true
    },
    "cni": {
      "enabled": true
    }
  }
}
ƒ
kubeconfig.jsoní{
  "apiVersion": "v1",
  "kind": "Config",
  "clusters": [
    {
      "name": "cluster",
      "cluster": {
        "server": "https://10.0.0.1:20002",
        "certificate-authority": "/etc/keelway/ca.crt",
        "tls-server-name": "kubernetes"
      }
    }
  ],
  "users": [
    {
      "name": "user",
      "user": {
        "client-certificate": "/etc/keelway/client.crt",
        "client-key": "/etc/keelway/client.key"
      }
    }
  ],
  "contexts": [
    {
      "name": "context",
      "context": {
        "cluster": "cluster",
        "user": "user"
      }
    }
  ],
  "current-context": "context"
}
·
ca.crtª-----BEGIN CERTIFICATE-----
MIIBbTCCAROgAwIBAgIQexWVhMEibfbsz8TKqM17YzAKBggqhkjOPQQDAjAVMRMw
EQYDVQQDDAprdWJlcm5ldGVzMB4XDTI1MTIzMTIzNTUwMFoXDTM1MTIzMDAwMDAw
MFowFTETMBEGA1UEAwwKa3ViZXJuZXRlczBZMBMGByqGSM49AgEGCCqGSM49AwEH
A0IABDAq+sIDfwtbrf/v69EjOFDBXpwj3sKFg6OfaXcwKFw3pQzrxpRIGkHk/2mG
aknvGp3AinPG+ALvdBxvh8xzJa6jRTBDMA4GA1UdDwEB/wQEAwIBhjAdBgNVHQ4E
FgQUzYz+OY3Tl0ytxSxVxTZinGs6F58wEgYDVR0TAQH/BAgwBgEB/wIBADAKBggq
hkjOPQQDAgNIADBFAiBNBAUo2f9BuhDmomcQ2pCAwVfYx81R8tsKsZdJjsn2AgIh
AOCQ7jI3yqcr4OI1Ig3/GJ8WwyoNX7o7jyMznbYURySR
-----END CERTIFICATE-----
•

client.crt„-----BEGIN CERTIFICATE-----
MIIBrTCCAVOgAwIBAgIQRgsMfhbd4ZwswHSXW0BLPzAKBggqhkjOPQQDAjAVMRMw
EQYDVQQDDAprdWJlcm5ldGVzMB4XDTI1MTIzMTIzNTUwMFoXDTI3MDEwMTAwMDAw
MFowJTEjMCEGA1UEAwwaa2VlbHdheTpjbHVzdGVyLWNvbnRyb2xsZXIwWTATBgcq
hkjOPQIBBggqhkjOPQMBBwNCAATB7DGzLUpy7ifvzUzYFqS5Z4vtu42crDraG3zl
bL8ZQR3iDEwuL/aBzw4OEmuq4Cf+eeOa2emx94Z3kaUe5T7bo3UwczAfBgNVHSME
GDAWgBTNjP45jdOXTK3FLFXFNmKcazoXnzAOBgNVHQ8BAf8EBAMCB4AwEwYDVR0l
BAwwCgYIKwYBBQUHAwIwHQYDVR0OBBYEFPmzeo9Hie30lMSZiz0AA15VEaL4MAwG
A1UdEwEB/wQCMAAwCgYIKoZIzj0EAwIDSAAwRQIgBiL+eaZu/oypzck81Ie6WS4u
lgbJOVEsSWAaaDAinBQCIQDf6UlGn5iekv9rQNAsytA+/+Pk6Y8AsFIB5loj3hyo
Dw==
-----END CERTIFICATE-----
‚

client.keyñ-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg9WM5oYh4JQtBK+2F
d9Esny5MipbUlHHgx+Ieywto022hRANCAATB7DGzLUpy7ifvzUzYFqS5Z4vtu42c
rDraG3zlbL8ZQR3iDEwuL/aBzw4OEmuq4Cf+eeOa2emx94Z3kaUe5T7b
-----END PRIVATE KEY-----
"run*ý
cluster-controller.registry.keelway.dev/cluster-controller:v0.1.0/keelway-cluster-controllerrun---config=/etc/keelway/cluster-controller.json--identity=cluster-controller-0--health=127.0.0.1:200066--metrics=/run/keelway-cluster-controller/metrics.sock"
files/etc/keelway"&
run/run/keelway-cluster-controller*€€€€0:&:
127.0.0.1:20006/healthz
 (0ð2registry.k8s.io/pause:3.10.2@"Ã

c000000000000001etcd-0€æþ‰¡

server.crt-----BEGIN CERTIFICATE-----
MIIBuDCCAV6gAwIBAgIQc2LxvtiHmaARWSg0LZE4+zAKBggqhkjOPQQDAjAPMQ0w
CwYDVQQDDARldGNkMB4XDTI1MTIzMTIzNTUwMFoXDTI3MDEwMTAwMDAwMFowETEP
MA0GA1UEAwwGZXRjZC0wMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEI1T2vFMQ
ZwUJNP5iGXeNb7nepREeSSkPOitbRDu6wj5nP5BAgtfOyMijcEhOcr/M40z2PFe7
+S/CPO21kV9HKaOBmTCBljAfBgNVHSMEGDAWgBQGRqXb41/2ePEdqoNT9smE4ktk
1jAXBgNVHREEEDAOggZldGNkLTCHBAoAAAEwDgYDVR0PAQH/BAQDAgeAMB0GA1Ud
JQQWMBQGCCsGAQUFBwMBBggrBgEFBQcDAjAdBgNVHQ4EFgQUfh7pumrBSlSDGxpi
hOJhmXBSZXIwDAYDVR0TAQH/BAIwADAKBggqhkjOPQQDAgNIADBFAiEA0D92lVd5
iXn6FUECtaOfz6khhQg7+Nxe1F0zqDyr6YICIEsrK9N/Wdee72XzNSLvzWHXZmWI
gYs7Wpe00/CVF1T5
-----END CERTIFICATE-----
‚

server.keyñ-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgTLznrnBhxZ6edYf+
FSRs871UshZS93apPeOBbTZnTo6hRANCAAQjVPa8UxBnBQk0/mIZd41vud6lER5J
KQ86K1tEO7rCPmc/kECC187IyKNwSE5yv8zjTPY8V7v5L8I87bWRX0cp
-----END PRIVATE KEY-----
£
peer.crt”-----BEGIN CERTIFICATE-----
MIIBuTCCAV6gAwIBAgIQYPfDR9Fxo5PWU6r3zqUbiDAKBggqhkjOPQQDAjAPMQ0w
CwYDVQQDDARldGNkMB4XDTI1MTIzMTIzNTUwMFoXDTI3MDEwMTAwMDAwMFowETEP
MA0GA1UEAwwGZXRjZC0wMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEOo535PpU
bUpHsZvXuQ40M+HQi9x7WpmcB8TzFE5rPnIT1sSAxp+dJndgJxFacz5K+2T/ElIr
tqJlh2v43QV73KOBmTCBljAfBgNVHSMEGDAWgBQGRqXb41/2ePEdqoNT9smE4ktk
1jAXBgNVHREEEDAOggZldGNkLTCHBAoAAAEwDgYDVR0PAQH/BAQDAgeAMB0GA1Ud
JQQWMBQGCCsGAQUFBwMBBggrBgEFBQcDAjAdBgNVHQ4EFgQUBqY5txnubkNBf7M4
P1qq6bQfao4wDAYDVR0TAQH/BAIwADAKBggqhkjOPQQDAgNJADBGAiEAoSA7BIC0
aKVNAwrSxHSiLrRHqSGiR5MI+EdWcTrCE3ACIQDGeiojlPOqaHy4V1S7SJwOXZ7y
sSXiampj7WLKKKDgLA==
-----END CERTIFICATE-----
€
peer.keyñ-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgajukAgUbqcS+VuUi
+5AW01XZmdlH22kRgM9TYnwl2PyhRANCAAQ6jnfk+lRtSkexm9e5DjQz4dCL3Hta
mZwHxPMUTms+chPWxIDGn50md2AnEVpzPkr7ZP8SUiu2omWHa/jdBXvc
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
etcdregistry.k8s.io/etcd:3.7.0-0etcd--name=etcd-0--data-dir=/var/lib/etcd+--listen-client-urls=https://10.0.0.1:20000.--advertise-client-urls=https://10.0.0.1:20000)--listen-peer-urls=https://10.0.0.1:200014--initial-advertise-peer-urls=https://10.0.0.1:20001k--initial-cluster=etcd-0=https://10.0.0.1:20001,etcd-1=https://10.0.0.2:20001,etcd-2=https://10.0.0.3:20001(--initial-cluster-token=c000000000000001--initial-cluster-state=new#--cert-file=/etc/keelway/server.crt"--key-file=/etc/keelway/server.key%--trusted-ca-file=/etc/keelway/ca.crt--client-cert-auth=true&--peer-cert-file=/etc/keelway/peer.crt%--peer-key-file=/etc/keelway/peer.key*--peer-trusted-ca-file=/etc/keelway/ca.crt--peer-client-cert-auth=true--tls-min-version=TLS1.2>--feature-gates=InitialCorruptCheck=true,CompactHashCheck=true --quota-backend-bytes=4294967296--auto-compaction-mode=periodic--auto-compaction-retention=30m*--bootstrap-defrag-threshold-megabytes=200#--watch-progress-notify-interval=5s"
files/etc/keelway"
data/var/lib/etcd*d€€€€0:F
>
10.0.0.1:20000/livezetcd-0"ca.crt*
peer.crtpeer.key
 (2registry.k8s.io/pause:3.10.2@H"¿c
$
c000000000000001kube-apiserver-0æþ‰¬
etcd-ca.crtš-----BEGIN CERTIFICATE-----
MIIBYTCCAQegAwIBAgIQXMRWaWWJ7w/xNUfPWGGE7zAKBggqhkjOPQQDAjAPMQ0w
CwYDVQQDDARldGNkMB4XDTI1MTIzMTIzNTUwMFoXDTM1MTIzMDAwMDAwMFowDzEN
MAsGA1UEAwwEZXRjZDBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABFLMtIm41Ip1
DSiRwYP9M1CCYlJ210q+m9YQh0i4fTWIM8vetaZWW3eXJXRwpU7y3jrqQoE9up7z
aMQYlHXvWB+jRTBDMA4GA1UdDwEB/wQEAwIBhjAdBgNVHQ4EFgQUBkal2+Nf9njx
HaqDU/bJhOJLZNYwEgYDVR0TAQH/BAgwBgEB/wIBADAKBggqhkjOPQQDAgNIADBF
AiB3C/1kg+1I1+gEQXZGrE/dkeUnvwRmlBt8kvy0UoKPfwIhAJJOrsosG1Bwp1le
zr3lAXMvA0G4HjAW1HfDEm5dxfs5
-----END CERTIFICATE-----
·
ca.crtª-----BEGIN CERTIFICATE-----
MIIBbTCCAROgAwIBAgIQexWVhMEibfbsz8TKqM17YzAKBggqhkjOPQQDAjAVMRMw
EQYDVQQDDAprdWJlcm5ldGVzMB4XDTI1MTIzMTIzNTUwMFoXDTM1MTIzMDAwMDAw
MFowFTETMBEGA1UEAwwKa3ViZXJuZXRlczBZMBMGByqGSM49AgEGCCqGSM49AwEH
A0IABDAq+sIDfwtbrf/v69EjOFDBXpwj3sKFg6OfaXcwKFw3pQzrxpRIGkHk/2mG
aknvGp3AinPG+ALvdBxvh8xzJa6jRTBDMA4GA1UdDwEB/wQEAwIBhjAdBgNVHQ4E
FgQUzYz+OY3Tl0ytxSxVxTZinGs6F58wEgYDVR0TAQH/BAgwBgEB/wIBADAKBggq
hkjOPQQDAgNIADBFAiBNBAUo2f9BuhDmomcQ2pCAwVfYx81R8tsKsZdJjsn2AgIh
AOCQ7jI3yqcr4OI1Ig3/GJ8WwyoNX7o7jyMznbYURySR
-----END CERTIFICATE-----
Ç
front-proxy-ca.crt®-----BEGIN CERTIFICATE-----
MIIBbzCCARWgAwIBAgIQZPRVfxf++GOiMvFO2HjI4TAKBggqhkjOPQQDAjAWMRQw
EgYDVQQDDAtmcm9udC1wcm94eTAeFw0yNTEyMzEyMzU1MDBaFw0zNTEyMzAwMDAw
MDBaMBYxFDASBgNVBAMMC2Zyb250LXByb3h5MFkwEwYHKoZIzj0CAQYIKoZIzj0D
AQcDQgAEKzRspcOWeYv9fnjGj5Y0LRXL2KI+vhZU4/pCSloB7ve1OxfvF44J1uCp
RBumr9f/79arGo+rSq+RrccXTCrTd6NFMEMwDgYDVR0PAQH/BAQDAgGGMB0GA1Ud
DgQWBBSI4sQB06/j/Zu47dM6Z+FEaB1u7zASBgNVHRMBAf8ECDAGAQH/AgEAMAoG
CCqGSM49BAMCA0gAMEUCIQC/83rXM8MltaBdWpKrIzq6Et0I2NcYJlJThTw62WuX
dgIgdCRR8vhC01JDIRU3nmGimghpIJn/gsKxROmAZ/Ykqww=
-----END CERTIFICATE-----
Ì
service-account.pub²-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEVEynDme/QwX7LuXfLIiOnmNFJ10c
aLlYTe3dR3kQkKLHN7Y+m/vCi4U4X5pyXU8x8J2EqtoZ0fP7NrQfgmtbNQ==
-----END PUBLIC KEY-----
‹
service-account.keyñ-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgv0GLC9zu1B9qAPZf
HlM1QyLPPoS2VqswnXf0KGZQsp2hRANCAARUTKcOZ79DBfsu5d8siI6eY0UnXRxo
uVhN7d1HeRCQosc3tj6b+8KLhThfmnJdTzHwnYSq2hnR8/s2tB+Ca1s1
-----END PRIVATE KEY-----
Í
encryption.json·{
  "apiVersion": "apiserver.config.k8s.io/v1",
  "kind": "EncryptionConfiguration",
  "resources": [
    {
      "resources": [
        "secrets"
      ],
      "providers": [
        {
          "secretbox": {
            "keys": [
              {
                "name": "f05d83b3ebb8f2e2",
                "secret": "fmdBcFrB8lnIWtXrBQNSeV0LPwwAqiU8owXMBvXJxPQ="
              }
            ]
          }
        }
      ]
    }
  ]
}
¹
authentication.jsonŸ{
  "apiVersion": "apiserver.config.k8s.io/v1",
  "kind": "AuthenticationConfiguration",
  "anonymous": {
    "enabled": true,
    "conditions": [
      {
        "path": "/livez"
      },
      {
        "path": "/readyz"
      },
      {
        "path": "/healthz"
      }
    ]
  }
}
å


server.crtÔ
-----BEGIN CERTIFICATE-----
MIICKjCCAdGgAwIBAgIQeLLtIEebxS6B5dE1OIobbzAKBggqhkjOPQQDAjAVMRMw
EQYDVQQDDAprdWJlcm5ldGVzMB4XDTI1MTIzMTIzNTUwMFoXDTI3MDEwMTAwMDAw
MFowGTEXMBUGA1UEAwwOa3ViZS1hcGlzZXJ2ZXIwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAAQV1oMEJQN0EaK6DYAaroymZ0XbA3/5H3Oxs2xSodD4tssgmYPy9xwT
9vkc9+ta97PvBLV5Y2rsbNnjmseLSEGzo4H+MIH7MB8GA1UdIwQYMBaAFM2M/jmN
05dMrcUsVcU2YpxrOhefMIGFBgNVHREEfjB8ggprdWJlcm5ldGVzghJrdWJlcm5l
dGVzLmRlZmF1bHSCFmt1YmVybmV0ZXMuZGVmYXVsdC5zdmOCJGt1YmVybmV0ZXMu
ZGVmYXVsdC5zdmMuY2x1c3Rlci5sb2NhbIcECgAAAYcECmAAAYcEZFAAAYcEywBx
AYcEywBxAjAOBgNVHQ8BAf8EBAMCB4AwEwYDVR0lBAwwCgYIKwYBBQUHAwEwHQYD
VR0OBBYEFIcsguBe2woeAq3ve4ZchWAJBhq2MAwGA1UdEwEB/wQCMAAwCgYIKoZI
zj0EAwIDRwAwRAIgBJ5nJkluEd34z6if/MaGZiMEUMfCmNt+q8siNgFYT88CICIa
9cB4v1Mk6cWHgfIeP6JRtAPZ+wuc6cSaLM+LJ2IK
-----END CERTIFICATE-----
-----BEGIN CERTIFICATE-----
MIIBbTCCAROgAwIBAgIQexWVhMEibfbsz8TKqM17YzAKBggqhkjOPQQDAjAVMRMw
EQYDVQQDDAprdWJlcm5ldGVzMB4XDTI1MTIzMTIzNTUwMFoXDTM1MTIzMDAwMDAw
MFowFTETMBEGA1UEAwwKa3ViZXJuZXRlczBZMBMGByqGSM49AgEGCCqGSM49AwEH
A0IABDAq+sIDfwtbrf/v69EjOFDBXpwj3sKFg6OfaXcwKFw3pQzrxpRIGkHk/2mG
aknvGp3AinPG+ALvdBxvh8xzJa6jRTBDMA4GA1UdDwEB/wQEAwIBhjAdBgNVHQ4E
FgQUzYz+OY3Tl0ytxSxVxTZinGs6F58wEgYDVR0TAQH/BAgwBgEB/wIBADAKBggq
hkjOPQQDAgNIADBFAiBNBAUo2f9BuhDmomcQ2pCAwVfYx81R8tsKsZdJjsn2AgIh
AOCQ7jI3yqcr4OI1Ig3/GJ8WwyoNX7o7jyMznbYURySR
-----END CERTIFICATE-----
‚

server.keyñ-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg3R2Mn+w4jssXx4B0
AXVyZEAIY2VWmS5Y4bkN/IsweXyhRANCAAQV1oMEJQN0EaK6DYAaroymZ0XbA3/5
H3Oxs2xSodD4tssgmYPy9xwT9vkc9+ta97PvBLV5Y2rsbNnjmseLSEGz
-----END PRIVATE KEY-----
‘
etcd-client.crtû-----BEGIN CERTIFICATE-----
MIIBpzCCAU2gAwIBAgIQWvYClfdr2UyRQw4hgEdWQjAKBggqhkjOPQQDAjAPMQ0w
CwYDVQQDDARldGNkMB4XDTI1MTIzMTIzNTUwMFoXDTI3MDEwMTAwMDAwMFowJTEj
MCEGA1UEAwwaa3ViZS1hcGlzZXJ2ZXItZXRjZC1jbGllbnQwWTATBgcqhkjOPQIB
BggqhkjOPQMBBwNCAAQUPV2owXsIAuZmypQkis9BCkuidykWX90K+n9w7bkuebpl
d2Dpps+zJFWZ1pMSc1yThprKgdKTneTB1xF+NKsco3UwczAfBgNVHSMEGDAWgBQG
RqXb41/2ePEdqoNT9smE4ktk1jAOBgNVHQ8BAf8EBAMCB4AwEwYDVR0lBAwwCgYI
KwYBBQUHAwIwHQYDVR0OBBYEFNzUHopuDxTG4pgCru/v4vfUhDFzMAwGA1UdEwEB
/wQCMAAwCgYIKoZIzj0EAwIDSAAwRQIgePMfJ21sTHds3Ut35UhPiqmEqykwKF7F
Mjay9noDhlwCIQD4k+QAANzmHCMk9guJCTTCtsqawZZ56kEOqKVapUQSjA==
-----END CERTIFICATE-----
‡
etcd-client.keyñ-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg6cpXvfAhFmhxNHIg
g5oc5XZUKEO1rAX9+rZned4isC2hRANCAAQUPV2owXsIAuZmypQkis9BCkuidykW
X90K+n9w7bkuebpld2Dpps+zJFWZ1pMSc1yThprKgdKTneTB1xF+NKsc
-----END PRIVATE KEY-----

kubelet-client.crt„-----BEGIN CERTIFICATE-----
MIIBrjCCAVagAwIBAgIQXZArEqx2IjartEosw/fYyzAKBggqhkjOPQQDAjAVMRMw
EQYDVQQDDAprdWJlcm5ldGVzMB4XDTI1MTIzMTIzNTUwMFoXDTI3MDEwMTAwMDAw
MFowKDEmMCQGA1UEAwwda3ViZS1hcGlzZXJ2ZXIta3ViZWxldC1jbGllbnQwWTAT
BgcqhkjOPQIBBggqhkjOPQMBBwNCAAQbLQlCABnxgX755BNS4gm5hghalw7nHPGw
aTojH9UUyJeIfGHMCpjXdiOdcc9KywdkbkkteUn8VFy6aKhn2ymDo3UwczAfBgNV
HSMEGDAWgBTNjP45jdOXTK3FLFXFNmKcazoXnzAOBgNVHQ8BAf8EBAMCB4AwEwYD
VR0lBAwwCgYIKwYBBQUHAwIwHQYDVR0OBBYEFBmOWVQBH7ZfqnnpgYYspXXjXJVk
MAwGA1UdEwEB/wQCMAAwCgYIKoZIzj0EAwIDRgAwQwIfRwMiGw8kAp852BhTgq3G
qJAdi7KYyPu6NSjsxLXXDgIgQKL6mAV0j+WF5QdZ9voJ6fboeq+r0ZWs0FM8FFhC
/qs=
-----END CERTIFICATE-----
Š
kubelet-client.keyñ-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgwMjYKPq0B6UHDrgr
UVy6/gsRlu6TwAU2Yi+4pCyh3nWhRANCAAQbLQlCABnxgX755BNS4gm5hghalw7n
HPGwaTojH9UUyJeIfGHMCpjXdiOdcc9KywdkbkkteUn8VFy6aKhn2ymD
-----END PRIVATE KEY-----
”
front-proxy-client.crt÷-----BEGIN CERTIFICATE-----
MIIBpjCCAUygAwIBAgIQStzP6P64cjG722zL1xnVoDAKBggqhkjOPQQDAjAWMRQw
EgYDVQQDDAtmcm9udC1wcm94eTAeFw0yNTEyMzEyMzU1MDBaFw0yNzAxMDEwMDAw
MDBaMB0xGzAZBgNVBAMMEmZyb250LXByb3h5LWNsaWVudDBZMBMGByqGSM49AgEG
CCqGSM49AwEHA0IABFHbxH9mP+MPX4QsxGtGaXiuGnTxsmrVj6wYvdqgpc/QWouB
R2kZjLLWbqdGZC1jLJAZjaxSCq31zYPm4E1gX6GjdTBzMB8GA1UdIwQYMBaAFIji
xAHTr+P9m7jt0zpn4URoHW7vMA4GA1UdDwEB/wQEAwIHgDATBgNVHSUEDDAKBggr
BgEFBQcDAjAdBgNVHQ4EFgQUaCCUlpLHZkE37uOCXsRWcRilY/UwDAYDVR0TAQH/
BAIwADAKBggqhkjOPQQDAgNIADBFAiEAxfV2Ln4LmZtHUTC3IaEMmbWcjypCELO/
FgpO3p9MHXMCIEoGINKcmI5fJSNsR9fzczEakMAN5Pj9DGDG4YKc64vE
-----END CERTIFICATE-----
Ž
front-proxy-client.keyñ-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgyUj4jUqqW714S/uF
TRcJe9RmYbInnlch1y8ktlQ2/x2hRANCAARR28R/Zj/jD1+ELMRrRml4rhp08bJq
1Y+sGL3aoKXP0FqLgUdpGYyy1m6nRmQtYyyQGY2sUgqt9c2D5uBNYF+h
-----END PRIVATE KEY-----
¬
egress.jsonš{
  "cluster": {
    "socket": "/run/keelway-egress/cluster.sock",
    "gateways": [
      {
        "name": "gateway-0",
        "address": "10.0.1.1:20001"
      },
      {
        "name": "gateway-1",
        "address": "10.0.1.2:20001"
      }
    ],
    "serverName": "gateway.keelway",
    "tls": {
      "certificateFile": "/etc/keelway/egress.crt",
      "keyFile": "/etc/keelway/egress.key",
      "authorityFile": "/etc/keelway/infrastructure-ca.crt"
    }
  },
  "controlPlane": {
    "socket": "/run/keelway-egress/controlplane.sock",
    "forbiddenCIDRs": [
      "10.0.0.1/32",
      "10.0.0.2/31",
      "10.0.1.1/32",
      "10.0.1.2/32",
      "203.0.113.1/32",
      "203.0.113.2/32"
    ]
  },
  "health": "127.0.0.1:20003",
  "metrics": "/run/keelway-egress/metrics.sock"
}
æ
egress-selection.jsonÊ{
  "apiVersion": "apiserver.k8s.io/v1beta1",
  "kind": "EgressSelectorConfiguration",
  "egressSelections": [
    {
      "name": "cluster",
      "connection": {
        "proxyProtocol": "HTTPConnect",
        "transport": {
          "uds": {
            "udsName": "/run/keelway-egress/cluster.sock"
          }
        }
      }
    },
    {
      "name": "controlplane",
      "connection": {
        "proxyProtocol": "HTTPConnect",
        "transport": {
          "uds": {
            "udsName": "/run/keelway-egress/controlplane.sock"
          }
        }
      }
    }
  ]
}
Ò
infrastructure-ca.crt¶-----BEGIN CERTIFICATE-----
MIIBdTCCARugAwIBAgIQToH1n8izc5aaDQX0Zz71oTAKBggqhkjOPQQDAjAZMRcw
FQYDVQQDDA5pbmZyYXN0cnVjdHVyZTAeFw0yNTEyMzEyMzU1MDBaFw0zNTEyMzAw
MDAwMDBaMBkxFzAVBgNVBAMMDmluZnJhc3RydWN0dXJlMFkwEwYHKoZIzj0CAQYI
KoZIzj0DAQcDQgAEioj+/VA8b0/EjpsGeGzCi0W1ZUnCfmGEvCAkdek6NGRxaFN/
9a+EDYEHIIkVYB73G0jV5M/IXzMdHwmH5vm9F6NFMEMwDgYDVR0PAQH/BAQDAgGG
MB0GA1UdDgQWBBTxeSz3/xjqsl9DUOeK8QZmyjfvpjASBgNVHRMBAf8ECDAGAQH/
AgEAMAoGCCqGSM49BAMCA0gAMEUCIBK+iAEh19xwl8gnPE9BGaFFUrBMp5ROf6sm
J6ki81+BAiEAssjkTlZXEm9o1zygLw1duLFEvTWDAffpn3D5o/XGUJM=
-----END CERTIFICATE-----
ˆ

egress.crt÷-----BEGIN CERTIFICATE-----
MIIBpTCCAUugAwIBAgIQdV//ETyC7kS6/xOGpwMIgDAKBggqhkjOPQQDAjAZMRcw
FQYDVQQDDA5pbmZyYXN0cnVjdHVyZTAeFw0yNTEyMzEyMzU1MDBaFw0yNzAxMDEw
MDAwMDBaMBkxFzAVBgNVBAMMDmtlZWx3YXk6ZWdyZXNzMFkwEwYHKoZIzj0CAQYI
KoZIzj0DAQcDQgAEb0J7ISJ0DhVkpCsnpOx/neu0vPgn5FhV1KwWpPVytE6POQkI
eZ2PVXh99neU7XclhnR5sYgY7DjoypQ5KpIg96N1MHMwHwYDVR0jBBgwFoAU8Xks
9/8Y6rJfQ1DnivEGZso376YwDgYDVR0PAQH/BAQDAgeAMBMGA1UdJQQMMAoGCCsG
AQUFBwMCMB0GA1UdDgQWBBQXsyJ/HY/eeUrsfA+ZNwuIlvYXJjAMBgNVHRMBAf8E
AjAAMAoGCCqGSM49BAMCA0gAMEUCIFYgHgY2sEGm6O1m9kkAU6Ht7JNc3kRvtDvr
+rkv2FzwAiEA+He2vI01QY9oThFbLhXMbghdbOlaX71pioXwcbpOZWc=
-----END CERTIFICATE-----
‚

egress.keyñ-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgQPT7hOH/1yJfHGVO
Vd+qHQSbxXXqR/ONszNbSSZbXC+hRANCAARvQnshInQOFWSkKyek7H+d67S8+Cfk
WFXUrBak9XK0To85CQh5nY9VeH32d5TtdyWGdHmxiBjsOOjKlDkqkiD3
-----END PRIVATE KEY-----
"egress*ë
egress.registry.keelway.dev/cluster-controller:v0.1.0/keelway-cluster-controlleregress!--config=/etc/keelway/egress.json"
files/etc/keelway"
egress/run/keelway-egress*
€€€@0A:&:
127.0.0.1:20003/healthz
 (0ð*
kube-apiserver&registry.k8s.io/kube-apiserver:v1.37.0kube-apiserver--advertise-address=10.0.0.1--bind-address=10.0.0.1--secure-port=20002S--etcd-servers=https://10.0.0.1:20000,https://10.0.0.2:20000,https://10.0.0.3:20000&--etcd-cafile=/etc/keelway/etcd-ca.crt,--etcd-certfile=/etc/keelway/etcd-client.crt+--etcd-keyfile=/etc/keelway/etcd-client.key9--encryption-provider-config=/etc/keelway/encryption.json2--encryption-provider-config-automatic-reload=true'--tls-cert-file=/etc/keelway/server.crt.--tls-private-key-file=/etc/keelway/server.key--tls-min-version=VersionTLS12--profiling=false--shutdown-delay-duration=4s --shutdown-send-retry-after=true--goaway-chance=0.001$--client-ca-file=/etc/keelway/ca.crt8--authentication-config=/etc/keelway/authentication.json--authorization-mode=Node,RBAC"--enable-bootstrap-token-auth=true*--enable-admission-plugins=NodeRestriction--allow-privileged=true>--requestheader-client-ca-file=/etc/keelway/front-proxy-ca.crt0--requestheader-allowed-names=front-proxy-client.--requestheader-username-headers=X-Remote-User,--requestheader-group-headers=X-Remote-Group4--requestheader-extra-headers-prefix=X-Remote-Extra-<--proxy-client-cert-file=/etc/keelway/front-proxy-client.crt;--proxy-client-key-file=/etc/keelway/front-proxy-client.keyE--service-account-issuer=https://kubernetes.default.svc.cluster.local;--service-account-key-file=/etc/keelway/service-account.pubC--service-account-signing-key-file=/etc/keelway/service-account.key'--service-cluster-ip-range=10.96.0.0/16--endpoint-reconciler-type=none --enable-aggregator-routing=true3--kubelet-certificate-authority=/etc/keelway/ca.crt<--kubelet-client-certificate=/etc/keelway/kubelet-client.crt4--kubelet-client-key=/etc/keelway/kubelet-client.key,--kubelet-preferred-address-types=InternalIP@--egress-selector-config-file=/etc/keelway/egress-selection.json"
files/etc/keelway"
egress/run/keelway-egress*	–€€€€0Z:D
9
10.0.0.1:20002/livez?exclude=etcd
kubernetes"ca.crt
 (0ð2registry.k8s.io/pause:3.10.2@"‘4
-
c000000000000001kube-controller-manager-0‚æþ‰ƒ
kubeconfig.jsoní{
  "apiVersion": "v1",
  "kind": "Config",
  "clusters": [
    {
      "name": "cluster",
      "cluster": {
        "server": "https://10.0.0.1:20002",
        "certificate-authority": "/etc/keelway/ca.crt",
        "tls-server-name": "kubernetes"
      }
    }
  ],
  "users": [
    {
      "name": "user",
      "user": {
        "client-certificate": "/etc/keelway/client.crt",
        "client-key": "/etc/keelway/client.key"
      }
    }
  ],
  "contexts": [
    {
      "name": "context",
      "context": {
        "cluster": "cluster",
        "user": "user"
      }
    }
  ],
  "current-context": "context"
}
·
ca.crtª-----BEGIN CERTIFICATE-----
MIIBbTCCAROgAwIBAgIQexWVhMEibfbsz8TKqM17YzAKBggqhkjOPQQDAjAVMRMw
EQYDVQQDDAprdWJlcm5ldGVzMB4XDTI1MTIzMTIzNTUwMFoXDTM1MTIzMDAwMDAw
MFowFTETMBEGA1UEAwwKa3ViZXJuZXRlczBZMBMGByqGSM49AgEGCCqGSM49AwEH
A0IABDAq+sIDfwtbrf/v69EjOFDBXpwj3sKFg6OfaXcwKFw3pQzrxpRIGkHk/2mG
aknvGp3AinPG+ALvdBxvh8xzJa6jRTBDMA4GA1UdDwEB/wQEAwIBhjAdBgNVHQ4E
FgQUzYz+OY3Tl0ytxSxVxTZinGs6F58wEgYDVR0TAQH/BAgwBgEB/wIBADAKBggq
hkjOPQQDAgNIADBFAiBNBAUo2f9BuhDmomcQ2pCAwVfYx81R8tsKsZdJjsn2AgIh
AOCQ7jI3yqcr4OI1Ig3/GJ8WwyoNX7o7jyMznbYURySR
-----END CERTIFICATE-----
Ç
front-proxy-ca.crt®-----BEGIN CERTIFICATE-----
MIIBbzCCARWgAwIBAgIQZPRVfxf++GOiMvFO2HjI4TAKBggqhkjOPQQDAjAWMRQw
EgYDVQQDDAtmcm9udC1wcm94eTAeFw0yNTEyMzEyMzU1MDBaFw0zNTEyMzAwMDAw
MDBaMBYxFDASBgNVBAMMC2Zyb250LXByb3h5MFkwEwYHKoZIzj0CAQYIKoZIzj0D
AQcDQgAEKzRspcOWeYv9fnjGj5Y0LRXL2KI+vhZU4/pCSloB7ve1OxfvF44J1uCp
RBumr9f/79arGo+rSq+RrccXTCrTd6NFMEMwDgYDVR0PAQH/BAQDAgGGMB0GA1Ud
DgQWBBSI4sQB06/j/Zu47dM6Z+FEaB1u7zASBgNVHRMBAf8ECDAGAQH/AgEAMAoG
CCqGSM49BAMCA0gAMEUCIQC/83rXM8MltaBdWpKrIzq6Et0I2NcYJlJThTw62WuX
dgIgdCRR8vhC01JDIRU3nmGimghpIJn/gsKxROmAZ/Ykqww=
-----END CERTIFICATE-----
Ê
server-ca.crt¶-----BEGIN CERTIFICATE-----
MIIBdTCCARugAwIBAgIQToH1n8izc5aaDQX0Zz71oTAKBggqhkjOPQQDAjAZMRcw
FQYDVQQDDA5pbmZyYXN0cnVjdHVyZTAeFw0yNTEyMzEyMzU1MDBaFw0zNTEyMzAw
MDAwMDBaMBkxFzAVBgNVBAMMDmluZnJhc3RydWN0dXJlMFkwEwYHKoZIzj0CAQYI
KoZIzj0DAQcDQgAEioj+/VA8b0/EjpsGeGzCi0W1ZUnCfmGEvCAkdek6NGRxaFN/
9a+EDYEHIIkVYB73G0jV5M/IXzMdHwmH5vm9F6NFMEMwDgYDVR0PAQH/BAQDAgGG
MB0GA1UdDgQWBBTxeSz3/xjqsl9DUOeK8QZmyjfvpjASBgNVHRMBAf8ECDAGAQH/
AgEAMAoGCCqGSM49BAMCA0gAMEUCIBK+iAEh19xwl8gnPE9BGaFFUrBMp5ROf6sm
J6ki81+BAiEAssjkTlZXEm9o1zygLw1duLFEvTWDAffpn3D5o/XGUJM=
-----END CERTIFICATE-----
™

client.crtˆ-----BEGIN CERTIFICATE-----
MIIBsTCCAVegAwIBAgIQe2ylIjMP/oOzE6+TQdWVvjAKBggqhkjOPQQDAjAVMRMw
EQYDVQQDDAprdWJlcm5ldGVzMB4XDTI1MTIzMTIzNTUwMFoXDTI3MDEwMTAwMDAw
MFowKTEnMCUGA1UEAwwec3lzdGVtOmt1YmUtY29udHJvbGxlci1tYW5hZ2VyMFkw
EwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAElqK7odxzwsUtPuPi9zlpNgMJeq6FYDPs
OP+roGsAUCgLdsyVfWom5vsBow09XstDfevl9IZNph2S4J/aKH+OIKN1MHMwHwYD
VR0jBBgwFoAUzYz+OY3Tl0ytxSxVxTZinGs6F58wDgYDVR0PAQH/BAQDAgeAMBMG
A1UdJQQMMAoGCCsGAQUFBwMCMB0GA1UdDgQWBBT7qv95DGbF7JjEKsg9D7UtzHSh
CzAMBgNVHRMBAf8EAjAAMAoGCCqGSM49BAMCA0gAMEUCIQDNCz/3fnlGpfR4oaDE
Mx+BM6I84rYUYWpjb4entUIMQwIgVTuRRjlmoHMbawb/QEBZr1pOuM01tYqzn3sS
89tNLPQ=
-----END CERTIFICATE-----
‚

client.keyñ-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgVrnLxGSHQpnj4Tqw
YSbIsOuRSYQnmbR13mkPKdppZdShRANCAASWoruh3HPCxS0+4+L3OWk2Awl6roVg
M+w4/6ugawBQKAt2zJV9aibm+wGjDT1ey0N96+X0hk2mHZLgn9oof44g
-----END PRIVATE KEY-----
Ñ

server.crtÀ-----BEGIN CERTIFICATE-----
MIIB2jCCAYCgAwIBAgIQXoeIKEpjMNkchk9EXrKL5jAKBggqhkjOPQQDAjAZMRcw
FQYDVQQDDA5pbmZyYXN0cnVjdHVyZTAeFw0yNTEyMzEyMzU1MDBaFw0yNzAxMDEw
MDAwMDBaMCIxIDAeBgNVBAMMF2t1YmUtY29udHJvbGxlci1tYW5hZ2VyMFkwEwYH
KoZIzj0CAQYIKoZIzj0DAQcDQgAEYPvLaYgei308sJzDeVqfhXRDpOTLD0Tz+gZJ
DwzbzoIq2Sys1Z4M4IyhC/2twWLTjxZEVxQrSNDAzjb+anN/LaOBoDCBnTAfBgNV
HSMEGDAWgBTxeSz3/xjqsl9DUOeK8QZmyjfvpjAoBgNVHREEITAfghdrdWJlLWNv
bnRyb2xsZXItbWFuYWdlcocEfwAAATAOBgNVHQ8BAf8EBAMCB4AwEwYDVR0lBAww
CgYIKwYBBQUHAwEwHQYDVR0OBBYEFFrf6ucNdHIaOcTVXNvjCuG2cK5xMAwGA1Ud
EwEB/wQCMAAwCgYIKoZIzj0EAwIDSAAwRQIhAIjSQ3nwwHFuUoD/M1egB00Ck73B
RZwD/XL9MVDiRqKlAiAqBKhOTG57Ss2ocOzw95PEuN6m/Vpp/R2y7vuEol98oA==
-----END CERTIFICATE-----
‚

server.keyñ-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgL0YD954yVWlo3m1V
czlDSt6xc/z3mpSNxUTmK17f3DqhRANCAARg+8tpiB6LfTywnMN5Wp+FdEOk5MsP
RPP6BkkPDNvOgirZLKzVngzgjKEL/a3BYtOPFkRXFCtI0MDONv5qc38t
-----END PRIVATE KEY-----
»

signer.crtª-----BEGIN CERTIFICATE-----
MIIBbTCCAROgAwIBAgIQexWVhMEibfbsz8TKqM17YzAKBggqhkjOPQQDAjAVMRMw
EQYDVQQDDAprdWJlcm5ldGVzMB4XDTI1MTIzMTIzNTUwMFoXDTM1MTIzMDAwMDAw
MFowFTETMBEGA1UEAwwKa3ViZXJuZXRlczBZMBMGByqGSM49AgEGCCqGSM49AwEH
A0IABDAq+sIDfwtbrf/v69EjOFDBXpwj3sKFg6OfaXcwKFw3pQzrxpRIGkHk/2mG
aknvGp3AinPG+ALvdBxvh8xzJa6jRTBDMA4GA1UdDwEB/wQEAwIBhjAdBgNVHQ4E
FgQUzYz+OY3Tl0ytxSxVxTZinGs6F58wEgYDVR0TAQH/BAgwBgEB/wIBADAKBggq
hkjOPQQDAgNIADBFAiBNBAUo2f9BuhDmomcQ2pCAwVfYx81R8tsKsZdJjsn2AgIh
AOCQ7jI3yqcr4OI1Ig3/GJ8WwyoNX7o7jyMznbYURySR
-----END CERTIFICATE-----
‚

signer.keyñ-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgSmkNzCXR9LDayUgy
WsGPbdMlZDcXNfMsVHQ9xeJNKkGhRANCAAQwKvrCA38LW63/7+vRIzhQwV6cI97C
hYOjn2l3MChcN6UM68aUSBpB5P9phmpJ7xqdwIpzxvgC73Qcb4fMcyWu
-----END PRIVATE KEY-----
‹
service-account.keyñ-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgv0GLC9zu1B9qAPZf
HlM1QyLPPoS2VqswnXf0KGZQsp2hRANCAARUTKcOZ79DBfsu5d8siI6eY0UnXRxo
uVhN7d1HeRCQosc3tj6b+8KLhThfmnJdTzHwnYSq2hnR8/s2tB+Ca1s1
-----END PRIVATE KEY-----
*—	
kube-controller-manager/registry.k8s.io/kube-controller-manager:v1.37.0kube-controller-manager)--kubeconfig=/etc/keelway/kubeconfig.json8--authentication-kubeconfig=/etc/keelway/kubeconfig.json7--authorization-kubeconfig=/etc/keelway/kubeconfig.json--bind-address=127.0.0.1--secure-port=20004'--tls-cert-file=/etc/keelway/server.crt.--tls-private-key-file=/etc/keelway/server.key--tls-min-version=VersionTLS12$--client-ca-file=/etc/keelway/ca.crt>--requestheader-client-ca-file=/etc/keelway/front-proxy-ca.crt--leader-elect=true--profiling=false--cluster-name=c1--allocate-node-cidrs=true--cluster-cidr=10.244.0.0/16'--service-cluster-ip-range=10.96.0.0/163--cluster-signing-cert-file=/etc/keelway/signer.crt2--cluster-signing-key-file=/etc/keelway/signer.key--cluster-signing-duration=168h"--root-ca-file=/etc/keelway/ca.crtC--service-account-private-key-file=/etc/keelway/service-account.key&--use-service-account-credentials=trueX--controllers=*,token-cleaner-controller,-certificatesigningrequest-approving-controller"
files/etc/keelway*2€€€€0:N
C
127.0.0.1:20004/healthzkube-controller-manager"server-ca.crt
 (0ð2registry.k8s.io/pause:3.10.2@"'
$
c000000000000001kube-scheduler-0ƒæþ‰ƒ
kubeconfig.jsoní{
  "apiVersion": "v1",
  "kind": "Config",
  "clusters": [
    {
      "name": "cluster",
      "cluster": {
        "server": "https://10.0.0.1:20002",
        "certificate-authority": "/etc/keelway/ca.crt",
        "tls-server-name": "kubernetes"
      }
    }
  ],
  "users": [
    {
      "name": "user",
      "user": {
        "client-certificate": "/etc/keelway/client.crt",
        "client-key": "/etc/keelway/client.key"
      }
    }
  ],
  "contexts": [
    {
      "name": "context",
      "context": {
        "cluster": "cluster",
        "user": "user"
      }
    }
  ],
  "current-context": "context"
}
·
ca.crtª-----BEGIN CERTIFICATE-----
MIIBbTCCAROgAwIBAgIQexWVhMEibfbsz8TKqM17YzAKBggqhkjOPQQDAjAVMRMw
EQYDVQQDDAprdWJlcm5ldGVzMB4XDTI1MTIzMTIzNTUwMFoXDTM1MTIzMDAwMDAw
MFowFTETMBEGA1UEAwwKa3ViZXJuZXRlczBZMBMGByqGSM49AgEGCCqGSM49AwEH
A0IABDAq+sIDfwtbrf/v69EjOFDBXpwj3sKFg6OfaXcwKFw3pQzrxpRIGkHk/2mG
aknvGp3AinPG+ALvdBxvh8xzJa6jRTBDMA4GA1UdDwEB/wQEAwIBhjAdBgNVHQ4E
FgQUzYz+OY3Tl0ytxSxVxTZinGs6F58wEgYDVR0TAQH/BAgwBgEB/wIBADAKBggq
hkjOPQQDAgNIADBFAiBNBAUo2f9BuhDmomcQ2pCAwVfYx81R8tsKsZdJjsn2AgIh
AOCQ7jI3yqcr4OI1Ig3/GJ8WwyoNX7o7jyMznbYURySR
-----END CERTIFICATE-----
Ç
front-proxy-ca.crt®-----BEGIN CERTIFICATE-----
MIIBbzCCARWgAwIBAgIQZPRVfxf++GOiMvFO2HjI4TAKBggqhkjOPQQDAjAWMRQw
EgYDVQQDDAtmcm9udC1wcm94eTAeFw0yNTEyMzEyMzU1MDBaFw0zNTEyMzAwMDAw
MDBaMBYxFDASBgNVBAMMC2Zyb250LXByb3h5MFkwEwYHKoZIzj0CAQYIKoZIzj0D
AQcDQgAEKzRspcOWeYv9fnjGj5Y0LRXL2KI+vhZU4/pCSloB7ve1OxfvF44J1uCp
RBumr9f/79arGo+rSq+RrccXTCrTd6NFMEMwDgYDVR0PAQH/BAQDAgGGMB0GA1Ud
DgQWBBSI4sQB06/j/Zu47dM6Z+FEaB1u7zASBgNVHRMBAf8ECDAGAQH/AgEAMAoG
CCqGSM49BAMCA0gAMEUCIQC/83rXM8MltaBdWpKrIzq6Et0I2NcYJlJThTw62WuX
dgIgdCRR8vhC01JDIRU3nmGimghpIJn/gsKxROmAZ/Ykqww=
-----END CERTIFICATE-----
Ê
server-ca.crt¶-----BEGIN CERTIFICATE-----
MIIBdTCCARugAwIBAgIQToH1n8izc5aaDQX0Zz71oTAKBggqhkjOPQQDAjAZMRcw
FQYDVQQDDA5pbmZyYXN0cnVjdHVyZTAeFw0yNTEyMzEyMzU1MDBaFw0zNTEyMzAw
MDAwMDBaMBkxFzAVBgNVBAMMDmluZnJhc3RydWN0dXJlMFkwEwYHKoZIzj0CAQYI
KoZIzj0DAQcDQgAEioj+/VA8b0/EjpsGeGzCi0W1ZUnCfmGEvCAkdek6NGRxaFN/
9a+EDYEHIIkVYB73G0jV5M/IXzMdHwmH5vm9F6NFMEMwDgYDVR0PAQH/BAQDAgGG
MB0GA1UdDgQWBBTxeSz3/xjqsl9DUOeK8QZmyjfvpjASBgNVHRMBAf8ECDAGAQH/
AgEAMAoGCCqGSM49BAMCA0gAMEUCIBK+iAEh19xwl8gnPE9BGaFFUrBMp5ROf6sm
J6ki81+BAiEAssjkTlZXEm9o1zygLw1duLFEvTWDAffpn3D5o/XGUJM=
-----END CERTIFICATE-----
Œ

client.crtû-----BEGIN CERTIFICATE-----
MIIBqDCCAU6gAwIBAgIQaftAg/BGeVg8HxORdhogIzAKBggqhkjOPQQDAjAVMRMw
EQYDVQQDDAprdWJlcm5ldGVzMB4XDTI1MTIzMTIzNTUwMFoXDTI3MDEwMTAwMDAw
MFowIDEeMBwGA1UEAwwVc3lzdGVtOmt1YmUtc2NoZWR1bGVyMFkwEwYHKoZIzj0C
AQYIKoZIzj0DAQcDQgAEoOExozLNFzuYoqQh6LncUne441zKSVJu1KaulpWsv3Bh
ezOeE15ZpOCqWcGoPYsflaIysvdSyDZmmu7vY4JW0aN1MHMwHwYDVR0jBBgwFoAU
zYz+OY3Tl0ytxSxVxTZinGs6F58wDgYDVR0PAQH/BAQDAgeAMBMGA1UdJQQMMAoG
CCsGAQUFBwMCMB0GA1UdDgQWBBRqKW/1fGX3YXStwqDZvJhpf1F94TAMBgNVHRMB
Af8EAjAAMAoGCCqGSM49BAMCA0gAMEUCIQD4nEAmK/sUxMZ15KQaHfPtopBdLTG2
SjHVRJ2v59GS2wIgGB9eQWU9Zohl0j3XmQ91SFJp1rg1R+dGNFHReqLlDpQ=
-----END CERTIFICATE-----
‚

client.keyñ-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgBeItQRH8egIHwTSY
vZNDn90Re348ox27CNJDUTPHswOhRANCAASg4TGjMs0XO5iipCHoudxSd7jjXMpJ
Um7Upq6Wlay/cGF7M54TXlmk4KpZwag9ix+VojKy91LINmaa7u9jglbR
-----END PRIVATE KEY-----
¹

server.crt¨-----BEGIN CERTIFICATE-----
MIIByDCCAW6gAwIBAgIQTd37odIvgsXcSfasyjYeZDAKBggqhkjOPQQDAjAZMRcw
FQYDVQQDDA5pbmZyYXN0cnVjdHVyZTAeFw0yNTEyMzEyMzU1MDBaFw0yNzAxMDEw
MDAwMDBaMBkxFzAVBgNVBAMMDmt1YmUtc2NoZWR1bGVyMFkwEwYHKoZIzj0CAQYI
KoZIzj0DAQcDQgAEZ0wRzYjcTV/LN5vQFwgdm7yM/O2FLuZRH5I3ZHNsJ5zIs//B
25ig2F0XX9ClacZ1idMdryDK6Tr2/yG6DHmdc6OBlzCBlDAfBgNVHSMEGDAWgBTx
eSz3/xjqsl9DUOeK8QZmyjfvpjAfBgNVHREEGDAWgg5rdWJlLXNjaGVkdWxlcocE
fwAAATAOBgNVHQ8BAf8EBAMCB4AwEwYDVR0lBAwwCgYIKwYBBQUHAwEwHQYDVR0O
BBYEFO4heU9MjwI0mDqjUOXQN5R+AU6TMAwGA1UdEwEB/wQCMAAwCgYIKoZIzj0E
AwIDSAAwRQIhAJ/8whJSYELZloAi4BwJ/xrWExGWfbr67x5prh9/xGAYAiAhHkRe
F9yAwGJd5VQ+tQ0UvRTuO949j/P2XfxiVpcqkw==
-----END CERTIFICATE-----
‚

server.keyñ-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgIMVVFp2amuT6aiq6
EnEp8WrUOdrLalJrJ7ntb9SAvjahRANCAARnTBHNiNxNX8s3m9AXCB2bvIz87YUu
5lEfkjdkc2wnnMiz/8HbmKDYXRdf0KVpxnWJ0x2vIMrpOvb/IboMeZ1z
-----END PRIVATE KEY-----
*†
kube-scheduler&registry.k8s.io/kube-scheduler:v1.37.0kube-scheduler)--kubeconfig=/etc/keelway/kubeconfig.json8--authentication-kubeconfig=/etc/keelway/kubeconfig.json7--authorization-kubeconfig=/etc/keelway/kubeconfig.json--bind-address=127.0.0.1--secure-port=20005'--tls-cert-file=/etc/keelway/server.crt.--tls-private-key-file=/etc/keelway/server.key--tls-min-version=VersionTLS12$--client-ca-file=/etc/keelway/ca.crt>--requestheader-client-ca-file=/etc/keelway/front-proxy-ca.crt--leader-elect=true--profiling=false"
files/etc/keelway*2€€€€0:C
8
127.0.0.1:20005/livezkube-scheduler"server-ca.crt
 (0ð2registry.k8s.io/pause:3.10.2@@b7853eecd913f90b9001634ca4cb78b7c7309a3b79ce9c32dccdc7861edf0f50