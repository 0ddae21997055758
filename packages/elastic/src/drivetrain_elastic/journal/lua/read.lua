-- Returns a part of the records.
local journal, records = unpack(KEYS)
local incarnation = redis.call('HGET', journal, 'incarnation')
if incarnation ~= ARGV[1] then
  return {'claimed', incarnation or '0'}
end
return {'done', redis.call('LRANGE', records, ARGV[2], ARGV[3])}
