-- ARGV: keys. Returns the keys that are missing.
local missing = {}
for i = 1, #ARGV do
  if redis.call('HEXISTS', KEYS[1], ARGV[i]) == 0 then
    missing[#missing + 1] = ARGV[i]
  end
end
return missing
